"""What runs on the GPU host. Importing the package imports nothing else."""
