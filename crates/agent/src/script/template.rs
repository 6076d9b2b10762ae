//! Texts with variables: `{{input}}`, `{{turn}}`, `{{1}}` …

/// A variable of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Variable {
    /// The last thing a person said.
    Input,
    /// How many things people have said.
    Turn,
    /// How often tools were called since the input.
    Round,
    /// The last tool result since the input.
    LastToolResult,
    /// Which repetition of the piece this is, from 1.
    N,
    /// A group of the rule's pattern, from 1.
    Group(usize),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Literal(String),
    Variable(Variable),
}

/// A text with variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template(Vec<Segment>);

impl Template {
    /// Reads a template. `groups` is the number of groups that the rule's pattern has.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it.
    pub(super) fn parse(text: &str, groups: usize) -> Result<Self, String> {
        let mut segments = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find("{{") {
            literal.push_str(&rest[..at]);
            rest = &rest[at + 2..];
            if let Some(after) = rest.strip_prefix("{{") {
                literal.push_str("{{");
                rest = after;
                continue;
            }
            let Some((name, after)) = rest.split_once("}}") else {
                return Err("`{{` is never closed (write `{{{{` for two braces)".to_owned());
            };
            if !literal.is_empty() {
                segments.push(Segment::Literal(std::mem::take(&mut literal)));
            }
            segments.push(Segment::Variable(variable(name.trim(), groups)?));
            rest = after;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            segments.push(Segment::Literal(literal));
        }
        Ok(Self(segments))
    }

    /// Whether the template has this variable.
    pub(super) fn uses(&self, variable: Variable) -> bool {
        self.0.contains(&Segment::Variable(variable))
    }

    /// Fills the variables in.
    pub(super) fn render(&self, value: impl Fn(Variable) -> String) -> String {
        self.0
            .iter()
            .map(|segment| match segment {
                Segment::Literal(text) => text.clone(),
                Segment::Variable(variable) => value(*variable),
            })
            .collect()
    }
}

fn variable(name: &str, groups: usize) -> Result<Variable, String> {
    Ok(match name {
        "input" => Variable::Input,
        "turn" => Variable::Turn,
        "round" => Variable::Round,
        "last_tool_result" => Variable::LastToolResult,
        "n" => Variable::N,
        _ => match name.parse::<usize>() {
            Ok(group) if (1..=groups).contains(&group) => Variable::Group(group),
            Ok(_) => {
                return Err(format!(
                    "`{{{{{name}}}}}` names a group that the rule's `matches` does not have"
                ));
            }
            Err(_) => {
                return Err(format!(
                    "unknown variable `{{{{{name}}}}}`; there are input, turn, round, \
                     last_tool_result, n and the numbers of the groups in `matches`"
                ));
            }
        },
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn render(text: &str) -> String {
        Template::parse(text, 2).unwrap().render(|variable| format!("<{variable:?}>"))
    }

    #[test]
    fn variables_are_filled_in() {
        assert_eq!(render("a {{input}} b {{ 2 }}"), "a <Input> b <Group(2)>");
        assert_eq!(render("no } braces { here }}"), "no } braces { here }}");
        assert_eq!(render("{{{{input}}"), "{{input}}");
        assert_eq!(render(""), "");
    }

    #[test]
    fn what_is_unknown_is_refused() {
        for (text, word) in [("{{inptu}}", "inptu"), ("{{3}}", "group"), ("{{input", "closed")] {
            let error = Template::parse(text, 2).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
