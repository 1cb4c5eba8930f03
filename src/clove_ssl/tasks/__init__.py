"""What a pre-trained backbone is good for: models, datasets and scores of other tasks."""
