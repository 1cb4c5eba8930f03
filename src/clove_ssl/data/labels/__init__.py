"""What is known about images: their classes, and the classes of their pixels."""
