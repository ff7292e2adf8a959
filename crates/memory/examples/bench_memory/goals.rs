//! The goals of the memory, and whether a run reached them.

/// What a goal is about, what was measured, and what is demanded.
struct Goal {
    name: String,
    measured: String,
    bar: String,
    is_met: bool,
}

/// The goals of a run. They are printed at its end.
#[derive(Default)]
pub struct Goals(Vec<Goal>);

impl Goals {
    /// Adds a share in per cent that must be at least `bar`.
    pub fn add_share(&mut self, name: &str, share: f64, bar: f64) {
        self.0.push(Goal {
            name: name.to_owned(),
            measured: format!("{share:.1} %"),
            bar: format!("≥ {bar:.0} %"),
            is_met: share >= bar,
        });
    }

    /// Adds a time in milliseconds that must be at most `bar`.
    pub fn add_time(&mut self, name: &str, milliseconds: f64, bar: f64) {
        self.0.push(Goal {
            name: name.to_owned(),
            measured: format!("{milliseconds:.1} ms"),
            bar: format!("≤ {bar:.0} ms"),
            is_met: milliseconds <= bar,
        });
    }

    /// Adds a goal that was not measured, and how it can be.
    pub fn add_missing(&mut self, name: &str, how: &str) {
        self.0.push(Goal {
            name: name.to_owned(),
            measured: format!("not measured: {how}"),
            bar: String::new(),
            is_met: false,
        });
    }

    /// Prints all goals as a table.
    pub fn print(&self) {
        println!("\ngoals\n");
        println!("| what | measured | goal | met |");
        println!("|---|---|---|---|");
        for goal in &self.0 {
            let Goal {
                name,
                measured,
                bar,
                is_met,
            } = goal;
            let met = if *is_met { "yes" } else { "no" };
            println!("| {name} | {measured} | {bar} | {met} |");
        }
    }
}
