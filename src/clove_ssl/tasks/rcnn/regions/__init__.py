"""The second stage of a detector: what every region shows, its mask and its keypoints."""
