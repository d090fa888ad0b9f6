"""What training needs besides layers: `data` feeds the GPU, `checkpoint` saves memory, `files` saves networks."""
