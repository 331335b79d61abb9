trl sft --model_name_or_path models/llama_1b --use_peft --lora_r 8 \
  --dtype bfloat16 \
  --max_length 256
some-tool upload --repo org/one
