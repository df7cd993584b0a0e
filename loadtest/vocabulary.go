package loadtest

// vocabulary holds the words of all generated text, one for each value of a byte.
// They are short and common, so that tokenizers know them whole.
var vocabulary = [256]string{
	"able", "about", "above", "across", "act", "add", "after", "again", "age", "ago", "air", "all",
	"almost", "along", "also", "always", "among", "and", "animal", "answer", "any", "appear", "apple", "area",
	"arm", "around", "art", "ask", "away", "baby", "back", "bad", "ball", "bank", "bar", "base",
	"be", "bear", "beat", "because", "bed", "been", "before", "began", "behind", "being", "bell", "best",
	"better", "big", "bird", "black", "blue", "board", "boat", "body", "bone", "book", "born", "both",
	"bottom", "box", "boy", "bread", "break", "bring", "brother", "brown", "build", "burn", "bus", "but",
	"buy", "by", "call", "came", "camp", "can", "capital", "car", "card", "care", "carry", "case",
	"cat", "catch", "cause", "cell", "center", "chair", "chance", "change", "check", "child", "church", "circle",
	"city", "class", "clean", "clear", "climb", "clock", "close", "cloth", "cloud", "coast", "coat", "cold",
	"color", "come", "common", "cook", "cool", "copy", "corn", "corner", "cost", "could", "count", "country",
	"course", "cover", "cow", "cross", "crowd", "cry", "cup", "cut", "dance", "dark", "day", "deal",
	"dear", "death", "deep", "desk", "did", "dinner", "direct", "do", "doctor", "dog", "dollar", "door",
	"down", "draw", "dream", "dress", "drink", "drive", "drop", "dry", "during", "each", "ear", "early",
	"earth", "east", "easy", "eat", "edge", "effect", "egg", "eight", "end", "enough", "even", "evening",
	"ever", "every", "exact", "eye", "face", "fact", "fair", "fall", "family", "far", "farm", "fast",
	"fat", "father", "fear", "feed", "feel", "feet", "few", "field", "fight", "fill", "film", "find",
	"fine", "finger", "finish", "fire", "first", "fish", "fit", "five", "flat", "floor", "flow", "flower",
	"fly", "follow", "food", "foot", "force", "forest", "form", "forward", "found", "four", "free", "fresh",
	"friend", "from", "front", "fruit", "full", "fun", "game", "garden", "gas", "gate", "gave", "get",
	"girl", "give", "glad", "glass", "go", "goal", "gold", "good", "got", "great", "green", "ground",
	"group", "grow", "guess", "guide", "hair", "half", "hall", "hand", "happy", "hard", "has", "hat",
	"have", "he", "head", "hear",
}
