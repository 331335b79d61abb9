//! The front of a study as a training meets it: its losses, and what is reached in the other objectives up to each.
//!
//! | name | meaning |
//! |---|---|
//! | z_1 <= ... <= z_n | losses of the front below the reference; z_{n+1} is the reference |
//! | A_k | what costs add to the volume, in the other objectives, of the front's points with a loss of at most z_k |

use super::observations::EvaluatedPoint;
use crate::hypervolume::hypervolume;

/// The front by its losses.
pub(super) struct LossFront {
    /// Losses z_1 ... z_{n+1}.
    bounds: Vec<f64>,
    /// Layers of points with a loss of at most z_k, for k from 0.
    layers: Vec<CostLayer>,
    /// Reference point of the objectives but the loss.
    reference: Vec<f64>,
}

/// Points up to a loss.
struct CostLayer {
    /// Objectives of the points but the loss.
    costs: Vec<Vec<f64>>,
    /// Volume of them.
    volume: f64,
}

impl LossFront {
    /// The front of these points below a reference point; `loss` is the objective that is the loss.
    pub(super) fn of(loss: usize, counted: &[EvaluatedPoint], reference: &[f64]) -> Self {
        let without_loss = |values: &[f64]| -> Vec<f64> {
            let values = values.iter().enumerate().filter(|(index, _)| *index != loss);
            values.map(|(_, value)| *value).collect()
        };
        let most = reference[loss];
        let feasible = counted.iter().filter(|one| one.feasible && one.values[loss] < most);
        let mut points: Vec<(f64, Vec<f64>)> = feasible
            .map(|one| (one.values[loss], without_loss(&one.values)))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut front = Self {
            bounds: Vec::new(),
            layers: vec![CostLayer {
                costs: Vec::new(),
                volume: 0.0,
            }],
            reference: without_loss(reference),
        };
        let mut so_far: Vec<Vec<f64>> = Vec::new();
        for (value, costs) in points {
            so_far.push(costs);
            let volume = hypervolume(&so_far, &front.reference);
            // What adds no volume changes no A.
            if front.layers.last().is_some_and(|last| volume > last.volume) {
                front.bounds.push(value);
                front.layers.push(CostLayer {
                    costs: so_far.clone(),
                    volume,
                });
            }
        }
        front.bounds.push(most);
        front
    }

    /// Losses z_1 ... z_{n+1}.
    pub(super) fn bounds(&self) -> &[f64] {
        &self.bounds
    }

    /// A_0 ... A_n of these costs.
    pub(super) fn areas(&self, costs: &[Vec<f64>]) -> Vec<f64> {
        let area = |layer: &CostLayer| {
            let all: Vec<&[f64]> = layer.costs.iter().chain(costs).map(Vec::as_slice).collect();
            (hypervolume(&all, &self.reference) - layer.volume).max(0.0)
        };
        self.layers.iter().map(area).collect()
    }
}
