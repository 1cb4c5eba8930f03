"""Fine-tuning runs: start, training, evaluation and scores, with one seed or several."""
