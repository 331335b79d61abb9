//! Branches of a script: the one whose condition holds, and all of them where that is not known.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::run::{Flow, Frame, Run};
use super::syntax::{Branch, Expression, Form, Statement, Target};
use super::value::Evaluated;

impl Run<'_> {
    /// Walks the branch whose condition holds, or all of them from one on of which that is not known.
    pub(super) fn choose(&mut self, branches: &[Branch]) -> Flow {
        let mut grounds = BTreeSet::new();
        for (position, branch) in branches.iter().enumerate() {
            let Some(condition) = &branch.condition else {
                return self.walk_because(&branch.body, &grounds);
            };
            let evaluated = self.evaluate(condition);
            grounds.extend(evaluated.all_grounds());
            match evaluated.truth() {
                Some(true) => {
                    let is_assumed = !grounds.is_empty() || has_call(condition);
                    let before = is_assumed.then(|| self.frame().clone());
                    match (self.walk_because(&branch.body, &grounds), before) {
                        // What is assumed ends no script: an option without a default is given one when it runs, and what a call
                        // returns is taken for something.
                        (Flow::Stop, Some(before)) if !self.is_cut() => *self.frame() = before,
                        (flow, _) => return flow,
                    }
                }
                Some(false) => self.add_grounds(&assigned_in(&branch.body), &grounds),
                None => return self.fork(condition, &branches[position..]),
            }
        }
        Flow::On
    }

    /// Walks a branch, and notes of what it gives other values why it was taken.
    fn walk_because(&mut self, body: &[Statement], grounds: &BTreeSet<Rc<str>>) -> Flow {
        let flow = self.walk(body);
        self.add_grounds(&assigned_in(body), grounds);
        match flow {
            Flow::Return(value) => Flow::Return(grounds.iter().fold(value, Evaluated::assuming)),
            flow => flow,
        }
    }

    fn add_grounds(&mut self, names: &BTreeSet<&str>, grounds: &BTreeSet<Rc<str>>) {
        if grounds.is_empty() {
            return;
        }
        for name in names {
            if let Some(value) = self.frame().get_mut(*name) {
                *value = grounds.iter().fold(value.clone(), Evaluated::assuming);
            }
        }
    }

    /// Walks branches of which it is not known which one runs. Those that leave the block are taken not to run, and of the others the
    /// first one's values count.
    fn fork(&mut self, condition: &Expression, branches: &[Branch]) -> Flow {
        let (location, text) = (self.location(condition.line), self.source.excerpt(&condition.bytes));
        let ground = format!("{location}: `if {text}` cannot be evaluated: its first branch is taken");
        let ground: Rc<str> = ground.into();
        let before = self.frame().clone();
        let mut ends: Vec<(Frame, Flow)> = Vec::new();
        for branch in branches {
            *self.frame() = before.clone();
            let flow = self.walk(&branch.body);
            ends.push((std::mem::take(self.frame()), flow));
        }
        if branches.iter().all(|branch| branch.condition.is_some()) {
            ends.push((before.clone(), Flow::On));
        }
        let go_on = |(_, flow): &&(Frame, Flow)| matches!(flow, Flow::On);
        let on: Vec<&Frame> = ends.iter().filter(go_on).map(|(frame, _)| frame).collect();
        let Some((first, others)) = on.split_first() else {
            let (frame, flow) = ends.swap_remove(0);
            *self.frame() = frame;
            return match flow {
                Flow::Return(value) => Flow::Return(value.assuming(&ground)),
                flow => flow,
            };
        };
        let merged = merged(&before, first, others, &ground);
        *self.frame() = merged;
        Flow::On
    }
}

/// The names after branches that go on: values of the first, with a ground where another differs.
fn merged(before: &Frame, first: &Frame, others: &[&Frame], ground: &Rc<str>) -> Frame {
    let mut all = first.clone();
    for other in others {
        for (name, value) in *other {
            match all.get_mut(name) {
                Some(own) if own.is_same(value) => {}
                Some(own) => *own = own.clone().assuming(ground),
                None => {
                    all.insert(name.clone(), value.clone().assuming(ground));
                }
            }
        }
        for (name, value) in &mut all {
            let is_new = !before.contains_key(name) && !other.contains_key(name);
            if is_new {
                *value = value.clone().assuming(ground);
            }
        }
    }
    all
}

/// Whether a condition rests on what a call returns.
fn has_call(condition: &Expression) -> bool {
    let mut found = false;
    condition.each(&mut |part| found |= matches!(part.form, Form::Call(..)));
    found
}

/// Names that statements give values, those of branches in them included.
fn assigned_in(body: &[Statement]) -> BTreeSet<&str> {
    fn add<'s>(target: &'s Target, all: &mut BTreeSet<&'s str>) {
        match target {
            Target::Name(name) => {
                all.insert(name);
            }
            Target::Many(targets) => targets.iter().for_each(|target| add(target, all)),
            Target::Attribute(object, _) | Target::Item(object, _) => {
                if let Form::Name(name) = &object.form {
                    all.insert(name);
                }
            }
            Target::Other => {}
        }
    }
    let mut all = BTreeSet::new();
    for statement in body {
        match statement {
            Statement::Assign { targets, .. } => targets.iter().for_each(|target| add(target, &mut all)),
            Statement::Augment { target, .. } => add(target, &mut all),
            Statement::If(branches) => {
                let bodies = branches.iter().map(|branch| assigned_in(&branch.body));
                all.extend(bodies.flatten());
            }
            Statement::For { body, .. }
            | Statement::While { body, .. }
            | Statement::With { body, .. }
            | Statement::Try(body) => all.extend(assigned_in(body)),
            _ => {}
        }
    }
    all
}
