"""What tools there are, what they are, and what they can do."""
