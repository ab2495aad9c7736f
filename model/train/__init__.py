"""Training of the models that write kernels: recipes, supervised fine-tuning, reinforcement learning by execution."""
