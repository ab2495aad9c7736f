"""The learned emitter: prompts, inference, training by SFT and execution-aware RL."""
