# Values of variables_of_a_file.sh.
MODEL=models/llama_1b
LR=7e-4
RANK=4
if [ -n "$SMALL" ]; then
  LENGTH=32
fi
