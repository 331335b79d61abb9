litgpt finetune_lora models/llama_1b --lora_r 8 --quantize bnb.nf4
