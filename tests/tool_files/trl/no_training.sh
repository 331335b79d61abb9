python tools/widen_layers.py \
    --model_name_or_path models/llama \
    --output_dir models/wider \
    --lora_r 8
