"""What is wrong with contracts that are well formed each by itself."""
