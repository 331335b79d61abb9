//! Names that files have for what modules call otherwise.
//!
//! Names in this program are those of transformers 5's modules, which PEFT has too. Files of Mixtral keep those of transformers 4;
//! whoever reads or writes such a file translates:
//!
//! | in files, and in adapters that were written under transformers 4 | module |
//! |---|---|
//! | `block_sparse_moe.gate` | `mlp.gate` |
//! | `block_sparse_moe.experts.3.w1`, `.w3`, `.w2` | `mlp.experts.3.gate_proj`, `.up_proj`, `.down_proj` |

/// A block of experts in files, and as a module.
const BLOCK: [&str; 2] = [".block_sparse_moe.", ".mlp."];
/// The projections of one expert, likewise.
const PROJECTIONS: [[&str; 2]; 3] = [["w1", "gate_proj"], ["w3", "up_proj"], ["w2", "down_proj"]];

/// The name as a module, or below one, of what a file calls `name`.
pub fn module_name(name: &str) -> String {
    let [in_files, in_modules] = BLOCK;
    let Some((layer, inner)) = name.split_once(in_files) else {
        return name.to_owned();
    };
    let of_module = |part| {
        let known = PROJECTIONS.iter().find(|[in_files, _]| *in_files == part);
        known.map_or(part, |[_, in_modules]| *in_modules)
    };
    let inner: Vec<&str> = inner.split('.').map(of_module).collect();
    format!("{layer}{in_modules}{}", inner.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_mixtral_are_translated_and_others_stay() {
        for (name, expected) in [
            (
                "model.layers.1.block_sparse_moe.gate.weight",
                "model.layers.1.mlp.gate.weight",
            ),
            (
                "model.layers.1.block_sparse_moe.experts.3.w3.weight",
                "model.layers.1.mlp.experts.3.up_proj.weight",
            ),
            (
                "base_model.model.model.layers.0.block_sparse_moe.experts.0.w2.lora_A.weight",
                "base_model.model.model.layers.0.mlp.experts.0.down_proj.lora_A.weight",
            ),
            (
                "model.layers.0.feed_forward.w1.weight",
                "model.layers.0.feed_forward.w1.weight",
            ),
        ] {
            assert_eq!(module_name(name), expected);
        }
    }
}
