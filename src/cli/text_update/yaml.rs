//! YAML, changed by its text.
//!
//! A block consists of chunks: a member or an element with the comments right above it, behind it, and below it where they
//! are indented more. A chunk that stays moves as a whole; in it, values that differ are replaced. A chunk that is new is
//! written as `concord_formats::yaml` does. All other comments are of the block, and stay where a chunk is removed.
//!
//! **Invariant:** the new text has all comments of the old one, except those of what was removed or replaced.

use std::{cell::RefCell, collections::BTreeMap, ops::Range};

use concord_formats::yaml;
use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

use super::{Pair, pairs};
use crate::cli::document;

/// A value in the text.
#[derive(Debug)]
struct Node {
    /// Behind its name and colon, or its dash.
    from: usize,
    /// The bytes of a scalar or of a collection in brackets; of another collection, from its first member or dash on, or
    /// from the comments right above that.
    span: Range<usize>,
    kind: Kind,
    /// The bytes behind the last scalar of it.
    end: usize,
}

#[derive(Debug)]
enum Kind {
    Scalar,
    /// A collection in brackets, with its values.
    Flow(Vec<(String, Node)>),
    /// Members with their names and the places of these.
    Block(Vec<(String, Range<usize>, Node)>),
    /// Elements with their dashes.
    List(Vec<(usize, Node)>),
}

/// A text with other values of its documents.
pub(super) fn update(text: &str, wanted: &[Value]) -> Result<String, String> {
    let now = document::read_yaml(text).map_err(|error| error.trim_start_matches(": ").to_owned())?;
    let nodes = nodes(text)?;
    if now.len() != wanted.len() || nodes.len() != wanted.len() {
        return Err("it has another number of documents".into());
    }
    let (mut out, mut done) = (String::new(), 0);
    let renderer = Renderer { text, gone: RefCell::default() };
    for (((node, end), now), wanted) in nodes.iter().zip(&now).zip(wanted) {
        if document::is_same(&now.value, wanted) {
            continue;
        }
        out.push_str(text.get(done..node.span.start).unwrap_or_default());
        let mut rendered = renderer.value(node, *end, (&now.value, wanted), Some(0));
        if !rendered.ends_with('\n') {
            rendered.push('\n');
        }
        out.push_str(&rendered);
        done = *end;
    }
    out.push_str(text.get(done..).unwrap_or_default());
    match lost_comment(text, &out, &renderer.gone.into_inner())? {
        Some(line) => Err(format!("the comment in line {line} would be lost")),
        None => Ok(out),
    }
}

/// The line of a comment that a text has no longer, though it was in no part that is gone.
fn lost_comment(text: &str, new: &str, gone: &[Range<usize>]) -> Result<Option<usize>, String> {
    let mut kept: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, comment) in comments(new)? {
        *kept.entry(comment).or_default() += 1;
    }
    let mut gone: Vec<&Range<usize>> = gone.iter().collect();
    gone.sort_unstable_by_key(|range| range.start);
    let (mut gone, mut until) = (gone.into_iter().peekable(), 0);
    for (at, comment) in comments(text)? {
        while let Some(range) = gone.next_if(|range| range.start <= at) {
            until = until.max(range.end);
        }
        if at < until {
            continue;
        }
        match kept.get_mut(comment) {
            Some(count @ 1..) => *count -= 1,
            Some(0) | None => {
                return Ok(Some(text.get(..at).unwrap_or_default().matches('\n').count() + 1));
            }
        }
    }
    Ok(None)
}

/// The comments of a text, and where they begin.
fn comments(text: &str) -> Result<Vec<(usize, &str)>, String> {
    let events = events(text)?;
    let reader = Reader { text, events: &events, next: 0 };
    // Only these texts can have what looks like a comment.
    let mut texts = events.iter().filter_map(|(event, span)| {
        let Event::Scalar(_, style, ..) = event else { return None };
        match style {
            ScalarStyle::Literal | ScalarStyle::Folded => Some(span.clone()),
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => {
                Some(span.start..reader.quoted(span.start).unwrap_or(span.end))
            }
            ScalarStyle::Plain => None,
        }
    });
    let (mut found, mut at, mut next) = (Vec::new(), 0, texts.next());
    while let Some(byte) = text.as_bytes().get(at) {
        if let Some(inside) = next.take_if(|inside| inside.start <= at) {
            at = at.max(inside.end);
            next = texts.next();
            continue;
        }
        let before = at.checked_sub(1).and_then(|before| text.as_bytes().get(before));
        if *byte == b'#' && before.is_none_or(u8::is_ascii_whitespace) {
            let comment = text.get(at..).and_then(|rest| rest.lines().next()).unwrap_or_default();
            found.push((at, comment.trim_end()));
            at += comment.len();
        } else {
            at += 1;
        }
    }
    Ok(found)
}

/// The events of the parser with their bytes.
fn events(text: &str) -> Result<Vec<(Event<'_>, Range<usize>)>, String> {
    // The parser counts characters.
    let bytes: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let byte = |index: usize| bytes.get(index).copied().unwrap_or(text.len());
    let all = Parser::new_from_str(text).map(|event| {
        let (event, span) = event.map_err(|error| error.info().to_owned())?;
        Ok((event, byte(span.start.index())..byte(span.end.index())))
    });
    all.collect()
}

/// The values of the documents, each with the end of its document.
fn nodes(text: &str) -> Result<Vec<(Node, usize)>, String> {
    let events = events(text)?;
    let mut reader = Reader { text, events: &events, next: 0 };
    let mut found: Vec<(Node, usize)> = Vec::new();
    while let Some((event, span)) = events.get(reader.next) {
        reader.next += 1;
        if matches!(event, Event::DocumentStart(_)) {
            let mut node = reader.value(span.end)?;
            // What is above the first member is about the file.
            let first = match &node.kind {
                Kind::Block(members) => members.first().map(|(_, place, _)| place.start),
                Kind::List(elements) => elements.first().map(|(dash, _)| *dash),
                Kind::Scalar | Kind::Flow(_) => None,
            };
            node.span.start = first.unwrap_or(node.span.start);
            found.push((node, text.len()));
        } else if matches!(event, Event::DocumentEnd)
            && let Some((node, end)) = found.last_mut()
        {
            // Its mark, or where the next one begins; comments between them stay.
            let begin = line_of(text, span.start);
            let line = text.get(begin..).unwrap_or_default();
            let is_mark = line.starts_with("---") || line.starts_with("...");
            *end = if is_mark { begin } else { span.start }.max(node.end);
        }
    }
    Ok(found)
}

struct Reader<'t> {
    text: &'t str,
    events: &'t [(Event<'t>, Range<usize>)],
    next: usize,
}

impl Reader<'_> {
    /// The value that begins at the next event, behind `from`: the end of its name or dash.
    fn value(&mut self, from: usize) -> Result<Node, String> {
        let odd = || "it can't be followed".to_owned();
        let (event, span) = self.events.get(self.next).ok_or_else(odd)?;
        let span = span.clone();
        self.next += 1;
        let is_flow = self.rest(span.start).starts_with(['{', '[']);
        match event {
            Event::Scalar(text, style, ..) => {
                let span = self.scalar(text, *style, span, from).ok_or_else(odd)?;
                Ok(Node { from, end: span.end, span, kind: Kind::Scalar })
            }
            Event::MappingStart(..) => {
                let (mut members, mut end) = (Vec::new(), span.start + usize::from(is_flow));
                while !matches!(self.events.get(self.next), Some((Event::MappingEnd, _))) {
                    let (Event::Scalar(name, ..), place) = self.events.get(self.next).ok_or_else(odd)? else {
                        return Err(odd());
                    };
                    self.next += 1;
                    // Within brackets a name may stand alone.
                    let colon = self.passed(place.end, ':').map(|colon| colon + 1);
                    let from = colon.or(is_flow.then_some(place.end)).ok_or_else(odd)?;
                    let node = self.value(from)?;
                    end = node.end;
                    members.push((name.to_string(), place.clone(), node));
                }
                self.next += 1;
                Ok(if is_flow {
                    let members = members.into_iter().map(|(name, _, node)| (name, node)).collect();
                    let end = self.closing(end, '}').ok_or_else(odd)?;
                    Node { from, span: span.start..end, kind: Kind::Flow(members), end }
                } else {
                    let begin = members.first().map_or(span.start, |(_, place, _)| place.start);
                    let begin = with_comments_above(self.text, from, begin);
                    Node { from, span: begin..end, kind: Kind::Block(members), end }
                })
            }
            Event::SequenceStart(..) => {
                let (mut elements, mut end) = (Vec::new(), span.start + usize::from(is_flow));
                // To the parser, a list at the column of its name begins behind its dash.
                let first = if is_flow { None } else { self.passed(from, '-') };
                let span = first.unwrap_or(span.start)..span.end;
                let column = column(self.text, span.start);
                while !matches!(self.events.get(self.next), Some((Event::SequenceEnd, _))) {
                    let dash = match elements.len() {
                        _ if is_flow => end,
                        0 => span.start,
                        _ => self.dash(end, column).ok_or_else(odd)?,
                    };
                    if !is_flow && !self.rest(dash).starts_with('-') {
                        return Err(odd());
                    }
                    let node = self.value(dash + usize::from(!is_flow))?;
                    end = node.end;
                    elements.push((dash, node));
                }
                self.next += 1;
                Ok(if is_flow {
                    let named = elements.into_iter().enumerate();
                    let named = named.map(|(place, (_, node))| (place.to_string(), node)).collect();
                    let end = self.closing(end, ']').ok_or_else(odd)?;
                    Node { from, span: span.start..end, kind: Kind::Flow(named), end }
                } else {
                    let begin = with_comments_above(self.text, from, span.start);
                    Node { from, span: begin..end, kind: Kind::List(elements), end }
                })
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::Alias(_)
            | Event::SequenceEnd
            | Event::MappingEnd => Err(odd()),
        }
    }

    /// The bytes of a scalar behind `from`.
    fn scalar(
        &self,
        text: &str,
        style: ScalarStyle,
        span: Range<usize>,
        from: usize,
    ) -> Option<Range<usize>> {
        Some(match style {
            ScalarStyle::Literal | ScalarStyle::Folded => self.block_scalar(span)?,
            ScalarStyle::Plain => match self.text.get(span.clone()) {
                Some(found) if !text.is_empty() && found.starts_with(text) => {
                    span.start..span.start + found.trim_end().len()
                }
                _ => from..from,
            },
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => span.start..self.quoted(span.start)?,
        })
    }

    fn rest(&self, from: usize) -> &str {
        self.text.get(from..).unwrap_or_default()
    }

    /// The place of a character behind spaces, comments and an anchor, if it comes next.
    fn passed(&self, from: usize, character: char) -> Option<usize> {
        let mut rest = self.text.get(from..)?;
        loop {
            let begin = rest.trim_start();
            let is_passed = begin.starts_with(['&', '#']);
            if !is_passed {
                return begin.starts_with(character).then_some(self.text.len() - begin.len());
            }
            let end = if begin.starts_with('#') { begin.find('\n') } else { begin.find(char::is_whitespace) };
            rest = end.and_then(|end| begin.get(end..)).unwrap_or_default();
        }
    }

    /// Behind the quote that closes a text.
    fn quoted(&self, begin: usize) -> Option<usize> {
        let mut characters = self.rest(begin).char_indices().peekable();
        let (_, quote) = characters.next()?;
        while let Some((at, character)) = characters.next() {
            if character == '\\' && quote == '"' {
                characters.next();
            } else if character == quote {
                let is_double = quote == '\'' && characters.peek().is_some_and(|(_, next)| *next == quote);
                if !is_double {
                    return Some(begin + at + 1);
                }
                characters.next();
            }
        }
        None
    }

    /// A scalar of several lines with its `|` or `>`; the span of the parser is that of its lines.
    fn block_scalar(&self, lines: Range<usize>) -> Option<Range<usize>> {
        let before = self.text.get(..lines.start)?.trim_end_matches([' ', '\n', '\r']);
        let begin = line_of(self.text, before.len());
        let line = before.get(begin..)?;
        let header = line.match_indices(['|', '>']).find(|(at, _)| {
            let rest = line
                .get(at + 1..)
                .unwrap_or_default()
                .trim_start_matches(['+', '-', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
            rest.trim_start().is_empty() || (rest.starts_with(' ') && rest.trim_start().starts_with('#'))
        });
        // Not the spaces before what follows.
        let end = line_of(self.text, lines.end);
        let is_empty = self.text.get(end..lines.end).is_none_or(|rest| rest.trim().is_empty());
        let end = if is_empty { end } else { lines.end };
        header.map(|(at, _)| begin + at..end)
    }

    /// The dash of the next element: the first thing in its line, at this column.
    fn dash(&self, from: usize, at: usize) -> Option<usize> {
        let mut line = self.rest(from).find('\n').map(|end| from + end + 1);
        if self.text.get(..from).is_some_and(|before| before.ends_with('\n')) {
            line = Some(from);
        }
        while let Some(begin) = line {
            let text = self.rest(begin);
            let first = begin + text.find(|character| character != ' ')?;
            if self.rest(first).starts_with('-') && column(self.text, first) == at {
                return Some(first);
            }
            line = text.find('\n').map(|end| begin + end + 1);
        }
        None
    }

    /// Behind the bracket that closes a collection whose last value ends here.
    fn closing(&self, from: usize, bracket: char) -> Option<usize> {
        let mut is_comment = false;
        let found = self.rest(from).char_indices().find(|(_, character)| {
            is_comment = (is_comment || *character == '#') && *character != '\n';
            !is_comment && *character == bracket
        });
        found.map(|(at, _)| from + at + 1)
    }
}

/// Where the line of a place begins.
fn line_of(text: &str, at: usize) -> usize {
    text.get(..at).and_then(|before| before.rfind('\n')).map_or(0, |end| end + 1)
}

/// Where the line behind that of a place begins.
fn line_behind(text: &str, at: usize) -> usize {
    text.get(at..).and_then(|rest| rest.find('\n')).map_or(text.len(), |end| at + end + 1)
}

/// Where a member begins with the comments right above it, those at its column, in the lines behind `from`.
fn with_comments_above(text: &str, from: usize, begin: usize) -> usize {
    let column = column(text, begin);
    let (mut at, mut start) = (begin, line_of(text, begin));
    while start > from {
        let above = line_of(text, start - 1);
        let line = text.get(above..start).unwrap_or_default();
        let bare = line.trim_start();
        if above < from || !bare.starts_with('#') || line.len() - bare.len() != column {
            break;
        }
        (at, start) = (above + column, above);
    }
    at
}

/// The characters before a place in its line.
fn column(text: &str, at: usize) -> usize {
    text.get(line_of(text, at)..at).unwrap_or_default().chars().count()
}

/// Writes values with the text that there is.
struct Renderer<'t> {
    text: &'t str,
    /// Parts of the text whose comments need not stay.
    gone: RefCell<Vec<Range<usize>>>,
}

/// A member or an element in the text.
struct Chunk<'n> {
    range: Range<usize>,
    /// Where the next one begins. What is in between belongs to the block.
    next: usize,
    node: &'n Node,
}

impl<'t> Renderer<'t> {
    fn part(&self, range: Range<usize>) -> &'t str {
        self.text.get(range).unwrap_or_default()
    }

    /// The text from a value to `end` with another value in its place. `column` is that of the block around it, none within
    /// brackets.
    fn value(
        &self,
        node: &Node,
        end: usize,
        (now, wanted): (&Value, &Value),
        column: Option<usize>,
    ) -> String {
        let rest = self.part(node.span.start..end);
        if document::is_same(now, wanted) {
            return rest.to_owned();
        }
        match (&node.kind, now, wanted) {
            (Kind::Block(members), Value::Object(now), Value::Object(wanted)) if !wanted.is_empty() => {
                self.members(members, node.span.start..end, now, wanted)
            }
            (Kind::List(elements), Value::Array(now), Value::Array(wanted)) if !wanted.is_empty() => {
                self.elements(elements, node.span.start..end, now, wanted)
            }
            (Kind::Flow(nodes), now, wanted) if has_same_shape(now, wanted) => {
                let of = |value: &Value, name: &str| match value {
                    Value::Object(members) => members.get(name).cloned(),
                    Value::Array(list) => name.parse().ok().and_then(|place: usize| list.get(place).cloned()),
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
                };
                let (mut out, mut done) = (String::new(), node.span.start);
                for (name, inner) in nodes {
                    let (now, wanted) =
                        (of(now, name).unwrap_or_default(), of(wanted, name).unwrap_or_default());
                    out.push_str(self.part(done..inner.span.start));
                    out.push_str(&self.value(inner, inner.span.end, (&now, &wanted), None));
                    done = inner.span.end;
                }
                out.push_str(self.part(done..end));
                out
            }
            (Kind::Flow(_), _, Value::Object(_) | Value::Array(_)) => {
                format!("{}{}", flow(wanted), self.part(node.span.end..end))
            }
            _ => {
                let (behind, gone) = match node.kind {
                    Kind::Scalar => (self.part(node.span.end..end), None),
                    Kind::Flow(_) => (self.part(node.span.end..end), Some(node.span.clone())),
                    // Not the comment in the line of the name.
                    Kind::Block(_) | Kind::List(_) => {
                        ("", Some(line_behind(self.text, node.from).min(node.span.start)..end))
                    }
                };
                self.gone.borrow_mut().extend(gone);
                self.replaced(node, wanted, behind, column)
            }
        }
    }

    /// Another value in place of a scalar, or of a collection as a whole. `behind` is what follows, such as a comment.
    fn replaced(&self, node: &Node, wanted: &Value, behind: &str, column: Option<usize>) -> String {
        let old = self.part(node.span.clone());
        let space = if node.span.is_empty() { " " } else { "" };
        let Some(column) = column else { return format!("{space}{}{behind}", flow(wanted)) };
        // A block of lines has a comment in its first line, and the end of its last one.
        let header = old.lines().next().filter(|line| line.starts_with(['|', '>'])).unwrap_or_default();
        let header = header.find(' ').and_then(|at| header.get(at..)).map_or("", str::trim_end);
        let behind = if behind.is_empty() || old.ends_with('\n') {
            format!("{header}\n{behind}")
        } else {
            behind.to_owned()
        };
        // The comment in the line of the member stays there.
        let (comment, rest) = behind.split_once('\n').unwrap_or((&behind, ""));
        if has_parts(wanted) {
            let written = indented(&yaml::write_exact(wanted), column + 2);
            return format!("{}\n{written}{rest}", comment.trim_end());
        }
        let written = yaml::write_exact(&Value::Array(vec![wanted.clone()]));
        let (first, lines) = written.split_once('\n').unwrap_or((&written, ""));
        format!("{space}{}{comment}\n{}{rest}", first.trim_start_matches("- "), indented(lines, column))
    }

    fn members(
        &self,
        members: &[(String, Range<usize>, Node)],
        range: Range<usize>,
        now: &Map<String, Value>,
        wanted: &Map<String, Value>,
    ) -> String {
        let begins: Vec<usize> = members.iter().map(|(_, place, _)| place.start).collect();
        let column = begins.first().map_or(0, |begin| column(self.text, *begin));
        let chunks = self.chunks(&begins, range, column, members.iter().map(|(_, _, node)| node));
        let places: BTreeMap<&str, usize> =
            members.iter().enumerate().map(|(place, (name, _, _))| (name.as_str(), place)).collect();
        let all = wanted.iter().map(|(name, value)| match (places.get(name.as_str()), now.get(name)) {
            (Some(&place), Some(now)) => {
                (Some(place), self.chunk(&chunks[place], place == 0, (now, value), column))
            }
            _ => {
                let one = Value::Object(Map::from_iter([(name.clone(), value.clone())]));
                (None, indented(&yaml::write_exact(&one), column))
            }
        });
        self.joined(&chunks, all.collect(), column)
    }

    fn elements(
        &self,
        elements: &[(usize, Node)],
        range: Range<usize>,
        now: &[Value],
        wanted: &[Value],
    ) -> String {
        let dashes: Vec<usize> = elements.iter().map(|(dash, _)| *dash).collect();
        let column = dashes.first().map_or(0, |dash| column(self.text, *dash));
        let chunks = self.chunks(&dashes, range, column, elements.iter().map(|(_, node)| node));
        let texts: Vec<String> = now.iter().map(Value::to_string).collect();
        let mut order: Vec<(usize, Option<usize>)> = Vec::new();
        for pair in pairs(&texts, wanted) {
            match pair {
                Pair::Both(old, new) => order.push((new, Some(old))),
                Pair::New(_, new) => order.push((new, None)),
                Pair::Old(_) => {}
            }
        }
        order.sort_unstable_by_key(|(new, _)| *new);
        let all = order.into_iter().map(|(new, old)| match old {
            Some(place) => {
                let values = (&now[place], &wanted[new]);
                (old, self.chunk(&chunks[place], place == 0, values, column))
            }
            None => (None, indented(&yaml::write_exact(&Value::Array(vec![wanted[new].clone()])), column)),
        });
        self.joined(&chunks, all.collect(), column)
    }

    /// Chunks below each other, each with its number if it is an old one. The first one stands where the block began.
    fn joined(&self, old: &[Chunk<'_>], new: Vec<(Option<usize>, String)>, column: usize) -> String {
        let mut stays = vec![false; old.len()];
        new.iter().filter_map(|(place, _)| *place).for_each(|place| stays[place] = true);
        // What is between two chunks follows the first one, or the last one before it that stays.
        let (mut begin, mut behind, mut last) = (String::new(), vec![String::new(); old.len()], None);
        for (place, chunk) in old.iter().enumerate() {
            let between = self.part(chunk.range.end..chunk.next);
            let is_last = place + 1 == old.len();
            if stays[place] {
                last = Some(place);
            } else {
                self.gone.borrow_mut().push(chunk.range.clone());
            }
            // The blank lines around a chunk that is removed are too many without it.
            if !is_last && (stays[place] || between.contains('#')) {
                last.map_or(&mut begin, |last| &mut behind[last]).push_str(between);
            }
        }
        let end = old.last().map_or("", |chunk| self.part(chunk.range.end..chunk.next));
        let begin: String = begin
            .lines()
            .skip_while(|line| line.trim().is_empty())
            .map(|line| indented(&format!("{}\n", line.trim()), column))
            .collect();
        let mut out = if last.is_some() { begin.clone() } else { String::new() };
        for (place, text) in new {
            out.push_str(&text);
            place.into_iter().for_each(|place| out.push_str(&behind[place]));
        }
        if last.is_none() {
            out.push_str(&begin);
        }
        out.push_str(end);
        let bare = out.get(column..).filter(|_| out.chars().take(column).all(|first| first == ' '));
        bare.unwrap_or(&out).to_owned()
    }

    /// A chunk with another value, as whole lines.
    fn chunk(
        &self,
        chunk: &Chunk<'_>,
        is_first: bool,
        (now, wanted): (&Value, &Value),
        column: usize,
    ) -> String {
        let node = chunk.node;
        let name = self.part(chunk.range.start..node.from);
        let between = self.part(node.from..node.span.start);
        let value = self.value(node, chunk.range.end, (now, wanted), Some(column));
        let is_kept = document::is_same(now, wanted)
            || match node.kind {
                Kind::Block(_) => wanted.is_object() && has_parts(wanted),
                Kind::List(_) => wanted.is_array() && has_parts(wanted),
                Kind::Flow(_) => wanted.is_object() || wanted.is_array(),
                Kind::Scalar => !has_parts(wanted),
            };
        let chunk = if is_kept {
            format!("{name}{between}{value}")
        } else {
            // The comment in the line of the name stays there.
            let comment = between.lines().next().unwrap_or_default().trim_end();
            let (first, lines) = value.split_once('\n').unwrap_or((&value, ""));
            let first = if has_parts(wanted) { first.to_owned() } else { format!(" {}", first.trim_start()) };
            if has_parts(wanted) {
                format!("{name}{comment}{first}\n{lines}")
            } else {
                format!("{name}{first}{comment}\n{lines}")
            }
        };
        let indent = if is_first { " ".repeat(column) } else { String::new() };
        let end = if chunk.ends_with('\n') { "" } else { "\n" };
        format!("{indent}{chunk}{end}")
    }

    /// The chunks of a block, whose members or dashes begin at these places.
    fn chunks<'n>(
        &self,
        begins: &[usize],
        range: Range<usize>,
        column: usize,
        nodes: impl Iterator<Item = &'n Node>,
    ) -> Vec<Chunk<'n>> {
        let nodes: Vec<&Node> = nodes.collect();
        let behind = begins.iter().skip(1).zip(&nodes).map(|(begin, before)| {
            let start = with_comments_above(self.text, before.end, *begin);
            line_of(self.text, start)
        });
        let starts: Vec<usize> = [range.start].into_iter().chain(behind).collect();
        let ends = starts.iter().skip(1).copied().chain([range.end]);
        let all = starts.iter().zip(ends).zip(nodes);
        all.map(|((start, next), node)| Chunk {
            range: *start..self.own_end(node.end, next, column),
            next,
            node,
        })
        .collect()
    }

    /// The end of a chunk whose value ends here: behind its line, and the comments below that are indented more.
    fn own_end(&self, value_end: usize, next: usize, column: usize) -> usize {
        let is_whole = self.part(0..value_end).ends_with('\n');
        let mut end = if is_whole { value_end } else { line_behind(self.text, value_end) }.min(next);
        let mut at = end;
        while at < next {
            let line = self.part(at..line_behind(self.text, at).min(next));
            let bare = line.trim_start();
            if !bare.is_empty() && line.len() - bare.len() <= column {
                break;
            }
            at += line.len().max(1);
            if !bare.is_empty() {
                end = at;
            }
        }
        end
    }
}

/// Whether a value takes lines of its own in a block.
fn has_parts(value: &Value) -> bool {
    match value {
        Value::Object(members) => !members.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Whether two values have the same members or elements, so that only values in them differ.
fn has_same_shape(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => one.keys().eq(other.keys()),
        (Value::Array(one), Value::Array(other)) => one.len() == other.len(),
        _ => false,
    }
}

/// Lines at a column. Empty ones stay empty.
fn indented(text: &str, column: usize) -> String {
    let indent = " ".repeat(column);
    text.split_inclusive('\n')
        .map(|line| if line == "\n" { line.to_owned() } else { format!("{indent}{line}") })
        .collect()
}

/// A value in one line.
pub(super) fn flow(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("[{}]", list.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Object(members) => {
            let each = |(name, value): (&String, &Value)| format!("{}: {}", flow_text(name), flow(value));
            format!("{{{}}}", members.iter().map(each).collect::<Vec<_>>().join(", "))
        }
        Value::String(text) => flow_text(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// A text within brackets, where a dash may mean more than elsewhere.
fn flow_text(text: &str) -> String {
    let is_word =
        text.chars().all(|character| character.is_ascii_alphanumeric() || "_./".contains(character));
    if is_word { yaml::scalar(text) } else { yaml::quoted(text) }
}
