"""A plugin that only a worker process fails to import."""

import multiprocessing

if multiprocessing.parent_process() is not None:
    raise ImportError("this plugin needs a library that the worker lacks")
