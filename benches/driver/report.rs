//! The table of figures: what was measured, what stood beside it, the ratio, the bound and whether it is met.

use super::machine;

/// What a figure must not pass.
#[derive(Clone, Copy)]
pub enum Bound {
    /// The figure may be this at most.
    AtMost(f64),
    /// The figure must be this at least.
    AtLeast(f64),
}

#[derive(Default)]
pub struct Report {
    rows: Vec<String>,
    missed: usize,
}

impl Report {
    /// A figure that only informs.
    pub fn figure(&mut self, what: &str, figure: String) {
        self.row(what, &figure, "", None, None);
    }

    /// A figure with a bound of its own, in `unit`.
    pub fn bounded(&mut self, what: &str, value: f64, unit: &str, bound: Bound) {
        self.row(what, &format!("{value:.2} {unit}"), "", None, Some((value, bound, unit)));
    }

    /// A figure beside a peer's, with a bound on the ratio of the two if the product has one.
    pub fn beside(&mut self, what: &str, figure: String, peer: String, ratio: f64, bound: Option<Bound>) {
        self.row(what, &figure, &peer, Some(ratio), bound.map(|bound| (ratio, bound, "×")));
    }

    fn row(&mut self, what: &str, figure: &str, peer: &str, ratio: Option<f64>, bound: Option<(f64, Bound, &str)>) {
        let ratio = ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        let (limit, verdict) = match bound {
            None => (String::new(), ""),
            Some((value, bound, unit)) => {
                let (sign, limit, met) = match bound {
                    Bound::AtMost(limit) => ("≤", limit, value <= limit),
                    Bound::AtLeast(limit) => ("≥", limit, value >= limit),
                };
                self.missed += usize::from(!met);
                (format!("{sign} {limit} {unit}"), if met { "yes" } else { "**no**" })
            }
        };
        eprintln!("  {what}: {figure}  {peer}  {ratio}  {limit}  {verdict}");
        self.rows.push(format!("| {what} | {figure} | {peer} | {ratio} | {limit} | {verdict} |"));
    }

    /// Whether no bound is missed.
    pub fn all_met(&self) -> bool {
        self.missed == 0
    }

    /// The table, ready for docs/performance.md.
    pub fn print(&self, percent: u64) {
        println!("{}\n", machine::describe());
        if percent != 100 {
            println!("Only {percent} % of the full work: the bounds are meant for all of it.\n");
        }
        println!("| what | figure | beside | ratio | bound | met |");
        println!("|---|---|---|---|---|---|");
        for row in &self.rows {
            println!("{row}");
        }
    }
}

/// The value below which `share` of the samples lie.
pub fn quantile(samples: &mut [f64], share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let index = ((samples.len() as f64 * share).ceil() as usize).clamp(1, samples.len());
    samples.get(index - 1).copied().unwrap_or(f64::NAN)
}

/// The middle one.
pub fn median(mut samples: Vec<f64>) -> f64 {
    quantile(&mut samples, 0.5)
}
