#!/bin/bash
set -e
MODEL=models/llama_1b
LR=5e-4
LR=7e-4
RANK=${RANK:-8}
BATCH=2
OUT="$HOME/runs"
PEFT_ARGS=(
  --use_peft --lora_r "$RANK"   # half of it is enough
  --lora_alpha $((2 * 8))
)
export MORE="--dtype bfloat16 --lora_dropout 0.1"
trl sft --model_name_or_path $MODEL --learning_rate "${LR}" --per_device_train_batch_size $BATCH \
  --max_length $((BATCH * 256)) "${PEFT_ARGS[@]}" $MORE --output_dir "$OUT" "$@"
LR=1
