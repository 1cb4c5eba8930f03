"""Pre-training methods: modules that turn a batch of views into a loss."""
