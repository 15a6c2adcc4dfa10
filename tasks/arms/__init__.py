"""Arms: runs that differ in a few keys, from the same data and judged on the same prompts, so that they compare."""
