"""Attribution inside the target: which source operators ran, and how long each of them took."""
