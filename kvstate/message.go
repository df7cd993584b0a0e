package kvstate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Message is one batch as it comes from a socket.
type Message struct {
	Seq       uint64   // number of the batch; vLLM counts from 0, others from 1
	Publisher [16]byte // identity of the publisher where it sends one, else zero
	Payload   []byte
}

// endOfReplay is the number of the message that ends a replay.
const endOfReplay = math.MaxUint64

var errFrames = errors.New("KV event message of a form that is not known")

// ParseLive reads the frames of a published message: topic, number, payload.
func ParseLive(frames [][]byte) (Message, error) {
	if len(frames) != 3 {
		return Message{}, fmt.Errorf("%w: %d frames", errFrames, len(frames))
	}
	m, err := parseNumbered(frames[1], frames[2])
	if err == nil && m.Seq == endOfReplay {
		err = fmt.Errorf("%w: the number of the end of a replay", errFrames)
	}
	return m, err
}

// ParseReply reads the frames of an answer to a replay request: empty, number, payload
// (vLLM before 0.26), or empty, topic, number, payload. End says that it is the last.
func ParseReply(frames [][]byte) (m Message, end bool, err error) {
	if len(frames) > 0 && len(frames[0]) == 0 {
		frames = frames[1:]
	}
	switch len(frames) {
	case 2:
		m, err = parseNumbered(frames[0], frames[1])
	case 3:
		m, err = parseNumbered(frames[1], frames[2])
	default:
		err = fmt.Errorf("%w: %d frames", errFrames, len(frames))
	}
	return m, err == nil && m.Seq == endOfReplay, err
}

// AppendRequest appends the frame that asks for a replay: the first number wanted.
func AppendRequest(b []byte, from uint64) []byte { return binary.BigEndian.AppendUint64(b, from) }

// parseNumbered reads a number of eight bytes, and behind it the publisher's identity
// if there are 16 more.
func parseNumbered(number, payload []byte) (Message, error) {
	if len(number) < 8 {
		return Message{}, fmt.Errorf("%w: number of %d bytes", errFrames, len(number))
	}
	m := Message{Seq: binary.BigEndian.Uint64(number), Payload: payload}
	if len(number) >= 24 {
		copy(m.Publisher[:], number[8:24])
	}
	return m, nil
}
