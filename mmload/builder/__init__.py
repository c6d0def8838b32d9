"""From a recipe to a dataset on disk: recipe, transforms, shard jobs, engines, staging, verify and repair."""
