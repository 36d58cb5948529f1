"""What is done to whole stores: recorded, inspected, verified, shown. Plain functions, no command line."""
