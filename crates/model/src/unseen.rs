//! Characters that a reader does not see.

/// Whether a character could make a text look like another one, or do more than show itself: it controls a terminal or the
/// direction of the text, or it has no width or no ink.
#[must_use]
pub fn is_unseen(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_width_is_unseen_and_letters_are_not() {
        let unseen = "\n\u{1b}\u{9b}\u{ad}\u{34f}\u{61c}\u{115f}\u{1160}\u{180e}\u{200b}\u{200d}\u{202e}\u{2060}\u{2066}\
                      \u{3164}\u{fe0f}\u{feff}\u{ffa0}\u{fff9}\u{e0001}\u{e007f}\u{e0100}";
        for character in unseen.chars() {
            assert!(is_unseen(character), "{character:?}");
        }
        for character in "aZ0 ~\u{e9}\u{df}\u{431}\u{4e2d}\u{1f600}\u{fffd}".chars() {
            assert!(!is_unseen(character), "{character:?}");
        }
    }
}
