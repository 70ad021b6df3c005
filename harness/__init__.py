"""What is compared and how."""
