"""Families about things that people have, make and count."""

from __future__ import annotations

from harness.datasets.word_problems.moves import Family, Move, Opening

__all__ = ["COUNTING"]


def _together(thing: str) -> tuple[Move, ...]:
    """How two people compare: the endings that most families of things share."""
    state, ask = f"Together they have {{eq}} {thing}.", f"How many {thing} do they have together?"
    return (
        Move(
            "and_more",
            "together_more",
            (f"{{O}} has {{k}} more {thing} than {{N}}.",),
            f"{{O}} has {{eq}} {thing}.",
            state,
            ask,
        ),
        Move(
            "and_fewer",
            "together_fewer",
            (f"{{O}} has {{k}} fewer {thing} than {{N}}.",),
            f"{{O}} has {{eq}} {thing}.",
            state,
            ask,
        ),
        Move(
            "and_times",
            "together_times",
            (f"{{O}} has {{k}} times as many {thing} as {{N}}.",),
            f"{{O}} has {{eq}} {thing}.",
            state,
            ask,
        ),
    )


def _goal(text: str, ask: str, state: str = "{P} still needs {eq}.") -> Move:
    return Move("goal", "goal", (text,), "", state, ask)


COUNTING = (
    Family(
        "collection",
        (
            Opening("given", ("{N} has {v} {i}.", "{N} owns {v} {i}.")),
            Opening("product", ("{N} has {a} {c} with {b} {i} each.",), "{N} starts with {eq} {i}."),
            Opening("sum", ("{N} has {a} old and {b} new {i}.",), "{N} starts with {eq} {i}."),
        ),
        ("{N} now has {eq} {i}.", "That makes {eq} {i}."),
        "How many {i} does {N} have now?",
        (
            Move("find", "add", ("{P} finds {k} more {i}.", "{O} gives {P2} {k} {i}.")),
            Move("lose", "sub", ("{P} loses {k} {i}.", "{P} gives {k} {i} to {O}.")),
            Move("buy_packs", "add_groups", ("{P} buys {n} packs of {m} {i}.",), "The packs hold {eq} {i}."),
            Move("give_bags", "sub_groups", ("{P} gives {n} {i} to each of {m} friends.",), "The friends get {eq} {i}."),
            Move("give_part", "sub_part", ("{P} gives {f} of {q} {i} to {O}.",), "{O} gets {eq} {i}."),
            Move("multiply", "mul", ("A year later {p} has {k} times as many.",)),
        ),
        (
            *_together("{i}"),
            Move(
                "share",
                "div",
                ("{P} shares them equally among {k} boxes.",),
                "",
                "Each box gets {eq} {i}.",
                "How many {i} are in each box?",
            ),
        ),
        ("{P} also has {k} {j}.", "{O} has {k} {j}."),
        {
            "i": ("stamps", "marbles", "shells", "cards", "stickers", "coins"),
            "c": ("boxes", "bags", "jars"),
            "j": ("pens", "books"),
        },
    ),
    Family(
        "bakery",
        (
            Opening(
                "product",
                ("A baker fills {a} trays with {b} {i} each.", "{N} bakes {a} trays of {b} {i}."),
                "The trays hold {eq} {i}.",
            ),
            Opening("given", ("{N} bakes {v} {i}.",)),
        ),
        ("There are {eq} {i} left.", "The bakery has {eq} {i}."),
        "How many {i} are there in the end?",
        (
            Move("sell", "sub", ("{k} {i} are sold before noon.", "A customer buys {k} {i}.")),
            Move("bake", "add", ("Then {k} more {i} come out of the oven.",)),
            Move("sell_bags", "sub_groups", ("{n} bags with {m} {i} each are sold.",), "The bags hold {eq} {i}."),
            Move("bake_trays", "add_groups", ("{n} more trays of {m} {i} are baked.",), "The new trays hold {eq} {i}."),
            Move("burn_part", "sub_part", ("{f} of the {i} are burnt and thrown away.",), "{eq} {i} are burnt."),
        ),
        (
            Move(
                "pack",
                "div",
                ("The rest is packed in {k} equal boxes.",),
                "",
                "Each box holds {eq} {i}.",
                "How many {i} are in each box?",
            ),
            Move("price", "mul", ("Each of them costs ${k}.",), "", "They cost ${eq}.", "How many dollars do they all cost?"),
        ),
        ("The oven is {k} years old.", "The shop opens for {k} hours."),
        {"i": ("rolls", "buns", "muffins", "pies")},
    ),
    Family(
        "library",
        (
            Opening("product", ("A shelf has {a} rows with {b} books each.",), "The shelf has {eq} books."),
            Opening("sum", ("A library has {a} story books and {b} school books.",), "The library has {eq} books."),
            Opening("given", ("A library has {v} books.",)),
        ),
        ("The library has {eq} books.", "Now there are {eq} books."),
        "How many books does the library have?",
        (
            Move("lend", "sub", ("{N} borrows {k} books.", "{k} books are lent out.")),
            Move("return", "add", ("{O} brings back {k} books.", "{k} books come back.")),
            Move("lend_class", "sub_groups", ("{n} children borrow {m} books each.",), "The children borrow {eq} books."),
            Move("donate", "add_groups", ("{n} people donate {m} books each.",), "They donate {eq} books."),
            Move("old_part", "sub_part", ("{f} of the books are too old and go away.",), "{eq} books go away."),
            Move("grow", "mul", ("Ten years later there are {k} times as many.",)),
        ),
        (
            Move(
                "shelves",
                "div",
                ("They are put on {k} equal shelves.",),
                "",
                "Each shelf has {eq} books.",
                "How many books are on each shelf?",
            ),
            Move(
                "goal",
                "goal",
                ("It wants to have {k} books.",),
                "",
                "The library needs {eq} more books.",
                "How many more books does it need?",
            ),
        ),
        ("The library has {k} chairs.", "A ticket costs ${k} a year."),
    ),
    Family(
        "garden",
        (
            Opening(
                "product",
                ("{N} plants {a} rows of {b} {i}.", "There are {a} rows with {b} {i} in a garden."),
                "The rows have {eq} {i}.",
            ),
            Opening("sum", ("{N} plants {a} red and {b} white {i}.",), "{N} plants {eq} {i}."),
        ),
        ("The garden has {eq} {i}.", "Now {eq} {i} grow there."),
        "How many {i} are in the garden?",
        (
            Move("plant", "add", ("In spring {k} more {i} are planted.",)),
            Move("pick", "sub", ("{N} picks {k} {i}.", "The wind breaks {k} {i}.")),
            Move("plant_beds", "add_groups", ("{n} new beds with {m} {i} each are added.",), "The new beds have {eq} {i}."),
            Move("pick_vases", "sub_groups", ("{O} cuts {n} {i} for each of {m} vases.",), "The vases take {eq} {i}."),
            Move("frost_part", "sub_part", ("The frost kills {f} of the {i}.",), "The frost kills {eq} {i}."),
            Move("spread", "mul", ("They spread until there are {k} times as many.",)),
        ),
        (
            Move(
                "bunch",
                "div",
                ("All of them are tied into {k} equal bunches.",),
                "",
                "Each bunch has {eq} {i}.",
                "How many {i} are in each bunch?",
            ),
        ),
        ("The garden has {k} trees.", "A watering can holds {k} litres."),
        {"i": ("roses", "tulips", "lilies")},
    ),
    Family(
        "farm",
        (
            Opening("product", ("{N} has {a} hens that lay {b} eggs each in a month.",), "The hens lay {eq} eggs."),
            Opening("given", ("{N} collects {v} eggs.", "The hens of {N} lay {v} eggs.")),
        ),
        ("{N} has {eq} eggs.", "That leaves {eq} eggs."),
        "How many eggs are left?",
        (
            Move("eat", "sub", ("{P} eats {k} of them.", "{P} uses {k} eggs for cakes.")),
            Move("lay", "add", ("The next day {k} more are laid.",)),
            Move("sell_boxes", "sub_groups", ("{P} sells {n} boxes with {m} eggs each.",), "The boxes hold {eq} eggs."),
            Move("crack_part", "sub_part", ("{f} of the eggs crack.",), "{eq} eggs crack."),
            Move("neighbour", "add_groups", ("{n} neighbours bring {m} eggs each.",), "The neighbours bring {eq} eggs."),
        ),
        (
            Move("price", "mul", ("{P} sells each egg for ${k}.",), "", "{P} earns ${eq}.", "How many dollars does {N} earn?"),
            Move("boxes", "div", ("They fit in boxes of {k}.",), "", "They fill {eq} boxes.", "How many boxes are filled?"),
            *_together("eggs"),
        ),
        ("The farm has {k} cows.", "The barn is {k} metres long."),
    ),
    Family(
        "bricks",
        (
            Opening(
                "product",
                ("{N} lays {a} rows of {b} bricks.", "A wall has {a} rows of {b} bricks."),
                "The wall has {eq} bricks.",
            ),
            Opening("given", ("{N} has {v} bricks.",)),
        ),
        ("There are {eq} bricks.", "The bricks are now {eq}."),
        "How many bricks are there?",
        (
            Move("bring", "add", ("{O} brings {k} more bricks.",)),
            Move("break", "sub", ("{k} bricks break.", "{O} takes {k} bricks away.")),
            Move("load", "add_groups", ("{n} carts bring {m} bricks each.",), "The carts bring {eq} bricks."),
            Move("use", "sub_groups", ("{n} steps are built with {m} bricks each.",), "The steps take {eq} bricks."),
            Move("part", "sub_part", ("{f} of the bricks are used for a path.",), "The path takes {eq} bricks."),
            Move("double", "mul", ("Later there are {k} times as many bricks.",)),
        ),
        (
            Move(
                "walls",
                "div",
                ("They are split into {k} equal piles.",),
                "",
                "Each pile has {eq} bricks.",
                "How many bricks are in each pile?",
            ),
            Move(
                "weigh",
                "mul",
                ("Each brick weighs {k} kilos.",),
                "",
                "They weigh {eq} kilos.",
                "How many kilos do the bricks weigh?",
            ),
        ),
        ("The wall is {k} metres long.", "{O} is {k} years old."),
    ),
    Family(
        "chairs",
        (
            Opening("product", ("A hall has {a} rows of {b} chairs.",), "The hall has {eq} chairs."),
            Opening("sum", ("A hall has {a} chairs below and {b} above.",), "The hall has {eq} chairs."),
        ),
        ("The hall has {eq} chairs.", "{eq} chairs stand there."),
        "How many chairs are in the hall?",
        (
            Move("carry_in", "add", ("{N} carries in {k} chairs.", "{k} chairs are added.")),
            Move("carry_out", "sub", ("{O} takes {k} chairs away.", "{k} chairs are broken and go away.")),
            Move("rows_in", "add_groups", ("{n} rows of {m} chairs are added.",), "The new rows have {eq} chairs."),
            Move("rows_out", "sub_groups", ("{n} rows of {m} chairs are taken away.",), "Those rows had {eq} chairs."),
            Move("part", "sub_part", ("{f} of the chairs are sold.",), "{eq} chairs are sold."),
        ),
        (
            Move(
                "seat_part",
                "sub_part",
                ("{f} of the chairs are taken.",),
                "{eq} chairs are taken.",
                "{eq} chairs are free.",
                "How many chairs are free?",
            ),
            Move(
                "price",
                "mul",
                ("A seat costs ${k}, and all are sold.",),
                "",
                "The seats bring ${eq}.",
                "How many dollars do the seats bring?",
            ),
            Move(
                "groups",
                "div",
                ("They are put in {k} equal rows.",),
                "",
                "Each row has {eq} chairs.",
                "How many chairs are in each row?",
            ),
        ),
        ("The hall has {k} windows.", "The show takes {k} minutes."),
    ),
    Family(
        "pond",
        (
            Opening("given", ("There are {v} {i} in a pond.", "A pond has {v} {i}.")),
            Opening("sum", ("A pond has {a} big and {b} small {i}.",), "The pond has {eq} {i}."),
        ),
        ("The pond has {eq} {i}.", "There are {eq} {i} then."),
        "How many {i} are in the pond?",
        (
            Move("come", "add", ("{k} more {i} come.", "{N} puts {k} {i} in.")),
            Move("leave", "sub", ("{k} {i} leave.", "{N} catches {k} {i}.")),
            Move("multiply", "mul", ("By summer there are {k} times as many.",)),
            Move("groups", "add_groups", ("{n} groups of {m} {i} arrive.",), "The groups are {eq} {i}."),
            Move("part", "sub_part", ("{f} of the {i} move to a lake.",), "{eq} {i} move."),
            Move("more_part", "add_part", ("Then their number grows by {f}.",), "It grows by {eq}."),
        ),
        (
            Move(
                "ponds",
                "div",
                ("They are moved to {k} equal tanks.",),
                "",
                "Each tank gets {eq} {i}.",
                "How many {i} are in each tank?",
            ),
        ),
        ("The pond is {k} metres wide.", "{k} birds sit in a tree."),
        {"i": ("fish", "frogs", "ducks")},
    ),
    Family(
        "beads",
        (
            Opening("product", ("{N} makes {a} chains of {b} beads.",), "The chains have {eq} beads."),
            Opening("sum", ("{N} has {a} blue and {b} green beads.",), "{N} has {eq} beads."),
        ),
        ("{N} has {eq} beads.", "That leaves {eq} beads."),
        "How many beads does {N} have?",
        (
            Move("buy", "add", ("{P} buys {k} more beads.",)),
            Move("drop", "sub", ("{P} drops {k} beads.", "{k} beads roll away.")),
            Move("rings", "sub_groups", ("{P} makes {n} rings with {m} beads each.",), "The rings take {eq} beads."),
            Move("bags", "add_groups", ("{O} brings {n} bags of {m} beads.",), "The bags hold {eq} beads."),
            Move("part", "sub_part", ("{P} uses {f} of {q} beads for a lamp.",), "The lamp takes {eq} beads."),
            Move("divide", "div", ("{P} keeps only one of {k} equal parts.",)),
        ),
        (*_together("beads"), _goal("{P} needs {k} beads for a bag.", "How many beads does {p} still need?")),
        ("A bead is {k} millimetres wide.", "{P} is {k} years old."),
    ),
    Family(
        "photos",
        (
            Opening("given", ("{N} has {v} photos on {q} phone.",)),
            Opening("product", ("{N} takes {a} photos on each of {b} days.",), "{N} takes {eq} photos."),
        ),
        ("There are {eq} photos.", "{N} then has {eq} photos."),
        "How many photos are on the phone?",
        (
            Move("take", "add", ("{P} takes {k} more photos.", "{O} sends {P2} {k} photos.")),
            Move("delete", "sub", ("{P} deletes {k} photos.",)),
            Move("albums", "sub_groups", ("{P} moves {n} albums of {m} photos away.",), "The albums have {eq} photos."),
            Move("trips", "add_groups", ("On {n} trips {p} takes {m} photos each.",), "The trips give {eq} photos."),
            Move("part", "sub_part", ("{P} deletes {f} of the photos.",), "{P} deletes {eq} photos."),
            Move("times", "mul", ("Soon {p} has {k} times as many.",)),
        ),
        (
            *_together("photos"),
            Move(
                "albums_each",
                "div",
                ("They fill {k} equal albums.",),
                "",
                "Each album has {eq} photos.",
                "How many photos are in each album?",
            ),
        ),
        ("The phone costs ${k}.", "The phone has {k} apps."),
    ),
    Family(
        "letters",
        (
            Opening("given", ("A post office has {v} letters.",)),
            Opening("product", ("{a} bags bring {b} letters each to a post office.",), "The bags bring {eq} letters."),
        ),
        ("The post office has {eq} letters.", "Then there are {eq} letters."),
        "How many letters are in the post office?",
        (
            Move("come", "add", ("{k} more letters arrive.",)),
            Move("deliver", "sub", ("{N} delivers {k} letters.",)),
            Move("carry", "sub_groups", ("{n} people carry {m} letters each away.",), "They carry {eq} letters."),
            Move("boxes", "add_groups", ("{n} boxes with {m} letters each are emptied.",), "The boxes had {eq} letters."),
            Move("part", "sub_part", ("{f} of the letters go by plane.",), "{eq} letters go by plane."),
            Move("times", "mul", ("Before a feast there are {k} times as many.",)),
        ),
        (
            Move(
                "split",
                "div",
                ("They are split among {k} streets equally.",),
                "",
                "Each street gets {eq} letters.",
                "How many letters does each street get?",
            ),
            Move(
                "stamp",
                "mul",
                ("Each letter needs stamps for ${k}.",),
                "",
                "The stamps cost ${eq}.",
                "How many dollars do the stamps cost?",
            ),
        ),
        ("It opens at {k} o'clock.", "{O} sends {k} parcels."),
    ),
    Family(
        "slices",
        (
            Opening("product", ("{a} {i} are cut into {b} slices each.",), "There are {eq} slices."),
            Opening("given", ("{N} cuts {v} slices of {i2}.",)),
        ),
        ("There are {eq} slices.", "Now {eq} slices are left."),
        "How many slices are left?",
        (
            Move("eat", "sub", ("{N} and {O} eat {k} slices.", "{k} slices are eaten.")),
            Move("guests", "sub_groups", ("{n} guests eat {m} slices each.",), "The guests eat {eq} slices."),
            Move("cut", "add", ("{k} more slices are cut.",)),
            Move("bring", "add_groups", ("{O} brings {n} plates of {m} slices.",), "The plates hold {eq} slices."),
            Move("part", "sub_part", ("{f} of the slices go to the neighbours.",), "The neighbours get {eq} slices."),
        ),
        (
            Move(
                "plates",
                "div",
                ("They are put on {k} plates equally.",),
                "",
                "Each plate has {eq} slices.",
                "How many slices are on each plate?",
            ),
        ),
        ("The party lasts {k} hours.", "{N} is {k} years old today."),
        {"i": ("cakes", "pies", "pizzas"), "i2": ("bread", "melon")},
    ),
    Family(
        "factory",
        (
            Opening("product", ("A machine makes {a} {i} an hour and runs for {b} hours.",), "The machine makes {eq} {i}."),
            Opening("given", ("A factory makes {v} {i} a day.",)),
        ),
        ("The factory has {eq} {i}.", "{eq} {i} are there."),
        "How many {i} does the factory have?",
        (
            Move("make", "add", ("Another machine adds {k} {i}.",)),
            Move("bad", "sub", ("{k} {i} are bad and go away.", "{N} takes {k} {i} out.")),
            Move("ship", "sub_groups", ("{n} boxes with {m} {i} each are sent away.",), "The boxes hold {eq} {i}."),
            Move("night", "add_groups", ("At night it makes {n} {i} an hour for {m} hours.",), "The night gives {eq} {i}."),
            Move("part", "sub_part", ("{f} of the {i} are sold.",), "{eq} {i} are sold."),
            Move("times", "mul", ("With new machines it has {k} times as many.",)),
        ),
        (
            Move("boxes", "div", ("They fit in boxes of {k}.",), "", "They fill {eq} boxes.", "How many boxes do they fill?"),
            Move("goal", "goal", ("An order asks for {k} {i}.",), "", "{eq} {i} are missing.", "How many {i} are missing?"),
        ),
        ("The factory is {k} years old.", "{k} people work there."),
        {"i": ("lamps", "toys", "pens", "cups")},
    ),
    Family(
        "fruit",
        (
            Opening("product", ("{N} picks {a} {i} from each of {b} trees.",), "{N} picks {eq} {i}."),
            Opening("sum", ("{N} picks {a} {i} and {O} picks {b}.",), "They pick {eq} {i}."),
        ),
        ("There are {eq} {i}.", "That gives {eq} {i}."),
        "How many {i} are there in the end?",
        (
            Move("pick", "add", ("Then {k} more {i} are picked.",)),
            Move("rot", "sub", ("{k} {i} are bad.", "{N} eats {k} {i}.")),
            Move("jam", "sub_groups", ("{n} jars of jam take {m} {i} each.",), "The jam takes {eq} {i}."),
            Move("baskets", "add_groups", ("{O} adds {n} baskets of {m} {i}.",), "The baskets hold {eq} {i}."),
            Move("part", "sub_part", ("{f} of the {i} are sold.",), "{eq} {i} are sold."),
        ),
        (
            Move("price", "mul", ("Each one is sold for ${k}.",), "", "They bring ${eq}.", "How many dollars do they bring?"),
            Move(
                "bags",
                "div",
                ("They are put in {k} bags equally.",),
                "",
                "Each bag has {eq} {i}.",
                "How many {i} are in each bag?",
            ),
        ),
        ("The trees are {k} years old.", "A basket costs ${k}."),
        {"i": ("apples", "pears", "plums", "lemons")},
    ),
)
