// One unit of both parts: nearly all the time goes into reading PyTorch's headers.
#include "device.cpp"
#include "group.cpp"
