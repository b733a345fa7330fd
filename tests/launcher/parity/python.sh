#!/bin/bash
# Stands for another Python (PYTHON_EXEC): it shows its arguments.
shift 2
touch "$1/touched-$RANK-by-other-python"
