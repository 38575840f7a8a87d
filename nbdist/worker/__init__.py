"""What runs in a rank: becoming one after the fork, its output, its process group, its work."""
