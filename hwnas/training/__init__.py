"""Training a supernet: data, augmentation, plans, losses, merges and the loop."""
