"""``clove study``: methods x seeds x tasks, and the paper's tables beside ours."""
