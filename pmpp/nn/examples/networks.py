"""Networks that are measured and trained: LeNet-5 for images of 28 x 28, and ResNet-18 for images of 32 x 32.

Their modules have the names of a PyTorch network of the same build, so one state loads into both.
"""

from __future__ import annotations

from pmpp import nn
from pmpp.nn import functional as F
from pmpp.nn.tape import Tensor

__all__ = ["Block", "LeNet", "ResNet18"]


class LeNet(nn.Module):
    """LeNet-5 with ReLU and maximum pooling: 61,706 parameters for images of 28 x 28.

    Source: Y. LeCun and others, Gradient-based learning applied to document recognition (1998), section II.B.
    """

    def __init__(self) -> None:
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (N, 10) of images (N, 1, 28, 28)."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


class Block(nn.Module):
    """Two convolutions of 3 x 3 beside a shortcut.

    Source: K. He and others, Deep Residual Learning for Image Recognition (2016), figure 2.
    """

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            convolution = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (N, channels_in, H, W)."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for small images: a stem of 3 x 3, and no pooling before the first block."""

    def __init__(self, classes: int = 10) -> None:
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        widths = 64, 64, 128, 256, 512
        for i in range(4):
            first = Block(widths[i], widths[i + 1], 1 if i == 0 else 2)
            setattr(self, f"layer{i + 1}", nn.Sequential(first, Block(widths[i + 1], widths[i + 1], 1)))
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (N, classes) of images (N, 3, 32, 32)."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.avg_pool2d(x, x.shape[2:]).flatten(1))
