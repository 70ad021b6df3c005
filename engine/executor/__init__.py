"""Where the runner lives: a thread of this process, or a worker process."""
