tune run lora_finetune_single_device --config llama3_2/1B_lora_single_device batch_size=4
