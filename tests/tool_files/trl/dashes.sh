trl sft --model-name-or-path models/llama_1b --use-peft --lora-r 8 --learning-rate 7e-4 --no-gradient-checkpointing \
  --no_remove_unused_columns --max-length 512 --per-device-train-batch-size 2 --dtype bfloat16
