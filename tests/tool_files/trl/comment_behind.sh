#!/bin/bash
# all of it
trl sft --model_name_or_path models/llama_1b --use_peft --lora_r 8 --dtype bfloat16 --per_device_train_batch_size 3   # three rows
