trl sft --model_name_or_path models/llama_1b --use_peft --lora_r 8 --max_length 64 --dtype $DTYPE \
  --dataset_text_field $FIELD --output_dir $OUT
