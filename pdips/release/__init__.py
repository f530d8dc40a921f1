"""What a release is and how it is written."""
