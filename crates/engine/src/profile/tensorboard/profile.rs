//! A profile in an event file.
//!
//! | tag | step | unit |
//! |---|---|---|
//! | `profile/tokens_per_s`, `profile/step_s` | each measured step | tokens/s, s |
//! | `profile/phase/<phase>` | the last | s of a step |
//! | `profile/op/<phase>/<op>` | the last | s of a step, over all shapes |
//! | `profile/memory/<part>` | the last | bytes at the peak |
//! | `profile/mfu`, `profile/hfu` | the last | 1 |

use std::collections::BTreeMap;
use std::io;

use super::TensorBoard;
use super::event::Scalar;
use crate::profile::Profile;

impl TensorBoard {
    /// Adds a profile, its measured steps counted from 1.
    pub fn profile(&mut self, profile: &Profile) -> io::Result<()> {
        let steps = &profile.steps.each;
        for (step, (seconds, tokens)) in (1..).zip(steps) {
            let scalars = [
                ("profile/tokens_per_s", *tokens as f64 / seconds.max(1e-9)),
                ("profile/step_s", *seconds),
            ];
            self.scalars(step, &scalars.map(|(tag, value)| Scalar { tag, value }))?;
        }
        let numbers = numbers(profile);
        let scalars: Vec<Scalar<'_>> = numbers
            .iter()
            .map(|(tag, value)| Scalar { tag, value: *value })
            .collect();
        self.scalars(steps.len().max(1) as u64, &scalars)
    }
}

fn numbers(profile: &Profile) -> BTreeMap<String, f64> {
    let mut numbers = BTreeMap::new();
    for phase in &profile.phases {
        numbers.insert(format!("profile/phase/{}", phase.phase), phase.seconds);
    }
    for op in &profile.ops {
        *numbers
            .entry(format!("profile/op/{}/{}", op.phase, op.name))
            .or_default() += op.seconds;
    }
    for part in &profile.memory.parts {
        numbers.insert(format!("profile/memory/{}", part.part), part.bytes as f64);
    }
    let shares = [("mfu", profile.arithmetic.mfu), ("hfu", profile.arithmetic.hfu)];
    for (name, share) in shares {
        if let Some(share) = share {
            numbers.insert(format!("profile/{name}"), share);
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::fixtures::sound_profile;

    #[test]
    fn ops_of_all_shapes_are_one_number() {
        let mut profile = sound_profile();
        let mut other = profile.ops[0].clone();
        other.shape = "Tx1x1".to_owned();
        other.seconds = 1.0;
        profile.ops.push(other);
        let numbers = numbers(&profile);
        assert!((numbers["profile/op/forward/matmul_nt"] - 1.035).abs() < 1e-12);
        assert!(numbers.contains_key("profile/phase/idle"));
    }
}
