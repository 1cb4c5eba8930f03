"""Batch norm together with what follows it in a ResNet, in as few passes as can be."""
