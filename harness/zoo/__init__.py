"""The zoo: small trained models that need no hub, fetched once into the cache."""

from harness.zoo.catalog import CATALOG, ZooEntry
from harness.zoo.fetch import ZooError, available_model, fetch, list_zoo, zoo_path

__all__ = ["CATALOG", "ZooEntry", "ZooError", "available_model", "fetch", "list_zoo", "zoo_path"]
