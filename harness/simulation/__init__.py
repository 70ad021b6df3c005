"""The real scheduler, KV cache, runner and step queue on a model whose right output is known without running anything twice."""
