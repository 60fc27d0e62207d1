//! Walks through every state that a model can reach, breadth first, so that the trace to a broken
//! check is the shortest there is. Knows nothing of what it walks through.

use std::{
    collections::{HashSet, VecDeque, hash_map::DefaultHasher},
    fmt::Debug,
    hash::{Hash, Hasher},
    time::Instant,
};

/// What must hold in every state: name, and whether it does.
pub type Check<S> = (&'static str, fn(&S) -> bool);

/// Something that goes from state to state by actions.
pub trait Model {
    type State: Clone + Hash;
    type Action: Clone + Debug;

    fn start(&self) -> Self::State;
    /// What can happen in a state.
    fn actions(&self, state: &Self::State) -> Vec<Self::Action>;
    /// The state after it.
    fn next(&self, state: &Self::State, action: &Self::Action) -> Self::State;
    /// What must hold in every state.
    fn checks(&self) -> Vec<Check<Self::State>>;
    /// What must come about once nothing goes wrong any more; the complaint if it does not. Shows
    /// each state on the way.
    fn calm(
        &self,
        state: &Self::State,
        see: &mut dyn FnMut(&Self::State) -> Result<(), String>,
    ) -> Result<(), String>;
}

/// The check that does not hold.
fn broken<S>(checks: &[Check<S>], state: &S) -> Result<(), String> {
    match checks.iter().find(|(_, holds)| !holds(state)) {
        None => Ok(()),
        Some((check, _)) => Err(format!("{check}: this does not hold")),
    }
}

/// The complaint about what comes of a state once nothing goes wrong any more.
fn uneasy<M: Model>(model: &M, checks: &[Check<M::State>], state: &M::State) -> Result<(), String> {
    let mut see = |s: &M::State| broken(checks, s);
    model.calm(state, &mut see).map_err(|complaint| format!("{complaint}, though all is calm"))
}

/// Walks through at most `limit` states; looks from every `calm_every`th on whether it calms down.
///
/// # Panics
/// With the shortest way to a state in which a check does not hold.
pub fn explore<M: Model>(name: &str, model: &M, limit: usize, calm_every: usize) {
    let (begun, checks) = (Instant::now(), model.checks());
    let (mut states, mut transitions, mut deepest, mut left_out) = (0_usize, 0, 0, 0);
    let mut known = HashSet::new();
    let mut ways: Vec<(usize, Option<M::Action>)> = vec![(0, None)];
    let mut ahead = VecDeque::from([(model.start(), 0, 0)]);
    known.insert(print_of(&ahead[0].0));
    while let Some((state, at, depth)) = ahead.pop_front() {
        (states, deepest) = (states + 1, depth);
        let look = broken(&checks, &state).and_then(|()| {
            if states.is_multiple_of(calm_every) { uneasy(model, &checks, &state) } else { Ok(()) }
        });
        if let Err(complaint) = look {
            panic!("{name}: {complaint}, after\n{}", way(&ways, at));
        }
        for action in model.actions(&state) {
            transitions += 1;
            let next = model.next(&state, &action);
            let print = print_of(&next);
            if known.contains(&print) {
                continue;
            }
            if known.len() >= limit {
                left_out += 1;
                continue;
            }
            known.insert(print);
            ways.push((at, Some(action)));
            ahead.push_back((next, ways.len() - 1, depth + 1));
        }
    }
    let whole = if left_out == 0 { "all there are" } else { "up to the limit" };
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{name}: {states} states ({whole}), {transitions} transitions, {deepest} deep, {seconds:.1} s"
    );
}

/// Goes so many ways of at most `length` actions, each chosen by chance, and looks at the end of
/// each whether it calms down: deep where [`explore`] is wide.
///
/// # Panics
/// With a way to a state in which a check does not hold.
pub fn wander<M: Model>(name: &str, model: &M, (walks, length): (usize, usize), seed: u64) {
    let (begun, checks) = (Instant::now(), model.checks());
    let (start, mut transitions, mut chance) = (model.start(), 0, seed);
    for walk in 0..walks {
        let (mut state, mut way) = (start.clone(), vec![]);
        let mut look = Ok(());
        while look.is_ok() && way.len() < length {
            let mut actions = model.actions(&state);
            if actions.is_empty() {
                break;
            }
            let action = actions.swap_remove(below(&mut chance, actions.len()));
            state = model.next(&state, &action);
            transitions += 1;
            way.push(format!("  {action:?}"));
            look = broken(&checks, &state);
        }
        if let Err(complaint) = look.and_then(|()| uneasy(model, &checks, &state)) {
            let way = way.join("\n");
            panic!("{name}: {complaint}, in walk {walk} of seed {seed}, after\n{way}");
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{name}: {walks} walks by chance, {transitions} transitions, {seconds:.1} s");
}

/// A number below `n`, by SplitMix64.
fn below(chance: &mut u64, n: usize) -> usize {
    *chance = chance.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *chance;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    let n = u64::try_from(n).expect("a small number");
    usize::try_from((z ^ (z >> 31)) % n).expect("below a small number")
}

/// A number from the environment, or another.
pub fn setting(name: &str, otherwise: usize) -> usize {
    match std::env::var(name) {
        Ok(value) => value.parse().unwrap_or_else(|e| panic!("{name}={value}: {e}")),
        Err(_) => otherwise,
    }
}

fn print_of(state: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

fn way<A: Debug>(ways: &[(usize, Option<A>)], mut at: usize) -> String {
    let mut steps = vec![];
    while let (before, Some(action)) = &ways[at] {
        steps.push(format!("  {action:?}"));
        at = *before;
    }
    steps.reverse();
    steps.join("\n")
}
