//! How the rows of a mixture lie on its experts.

/// A router's choices, as far as the time of products depends on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ExpertLoad {
    /// As many rows for each expert.
    #[default]
    Even,
    /// The n-th expert has a share of 1/n, but no token twice.
    Zipf,
    /// All tokens choose the same experts.
    Crowded,
}

/// Experts with as many rows each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ExpertGroup {
    pub rows: f64,
    pub experts: f64,
}

impl ExpertLoad {
    /// The experts that have rows, of `count` experts and `tokens` tokens that choose `chosen` each.
    pub(super) fn groups(self, count: usize, tokens: usize, chosen: usize) -> Vec<ExpertGroup> {
        let (rows, experts) = ((tokens * chosen) as f64, count.min(tokens * chosen).max(1) as f64);
        let alike = |experts: f64| {
            vec![ExpertGroup {
                rows: rows / experts,
                experts,
            }]
        };
        match self {
            Self::Even => alike(experts),
            Self::Crowded => alike(chosen as f64),
            Self::Zipf => zipf(count, tokens, chosen),
        }
    }
}

/// Shares of 1/n, of which none is above all tokens: what is above goes to the others.
fn zipf(count: usize, tokens: usize, chosen: usize) -> Vec<ExpertGroup> {
    let (mut left, most) = ((tokens * chosen) as f64, tokens as f64);
    let mut weights: f64 = (1..=count).map(|n| 1.0 / n as f64).sum();
    let mut groups = Vec::with_capacity(count);
    for n in 1..=count {
        let weight = 1.0 / n as f64;
        let rows = (left * weight / weights).min(most);
        if rows < 1.0 {
            // Of the rest some have a row, and the others none.
            let experts = left;
            groups.push(ExpertGroup { rows: 1.0, experts });
            break;
        }
        (left, weights) = (left - rows, weights - weight);
        groups.push(ExpertGroup { rows, experts: 1.0 });
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_load_loses_a_row_or_gives_an_expert_a_token_twice() {
        for (count, tokens, chosen) in [(128, 1024, 8), (32, 512, 4), (4, 64, 4), (60, 3, 4)] {
            for load in [ExpertLoad::Even, ExpertLoad::Zipf, ExpertLoad::Crowded] {
                let groups = load.groups(count, tokens, chosen);
                let all: f64 = groups.iter().map(|group| group.rows * group.experts).sum();
                let experts: f64 = groups.iter().map(|group| group.experts).sum();
                let rows = (tokens * chosen) as f64;
                assert!((all - rows).abs() < 1e-9 * rows, "{load:?}: {all} of {rows}");
                assert!(
                    experts <= count as f64 && experts >= chosen as f64 - 0.5,
                    "{load:?}: {experts}"
                );
                assert!(
                    groups.iter().all(|group| group.rows <= tokens as f64 + 1e-9),
                    "{load:?}"
                );
            }
        }
    }

    #[test]
    fn shares_fall_as_one_over_n() {
        let groups = ExpertLoad::Zipf.groups(32, 1000, 2);
        for (n, group) in (1..).zip(&groups) {
            assert!((group.rows * f64::from(n) / groups[0].rows - 1.0).abs() < 1e-9);
        }
    }
}
