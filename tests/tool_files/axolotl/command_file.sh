axolotl train poems.yml --micro-batch-size 4
