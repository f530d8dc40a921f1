"""Questions asked of each synthetic set as if it were the table."""
